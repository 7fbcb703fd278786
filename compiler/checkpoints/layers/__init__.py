"""What the dialects share that write one set of tensors a layer: config, layers, their parts."""
