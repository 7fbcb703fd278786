"""Code that passes share: rebuilding linalg operations, splitting loops, recognizing attention, and
schedules for IREE on GPUs."""
