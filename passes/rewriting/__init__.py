"""What passes share: linalg operations built anew, loops split, a vector product for GPUs."""
