"""Programs and variables on the devices of jax."""
