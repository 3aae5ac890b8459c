"""The only folder that uses private symbols of TensorFlow; `switches.PRIVATE` lists them."""
