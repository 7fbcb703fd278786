"""Products of computed tensors, of any sizes and layouts."""
