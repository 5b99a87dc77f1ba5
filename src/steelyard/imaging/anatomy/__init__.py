"""The average brain, ventricles and lesions."""
