"""Fast paths for one kind of hardware, each with its plain twin elsewhere in `nn/`."""
