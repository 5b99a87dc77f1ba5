"""What a training step costs, beside other methods."""
