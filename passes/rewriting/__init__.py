"""Code that passes share: rebuilding linalg operations, splitting loops, and schedules for IREE on
GPUs."""
