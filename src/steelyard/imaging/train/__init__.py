"""Training: slices, batches, the loop, checkpoints."""
