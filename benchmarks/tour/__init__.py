"""The way of a program through the library: which folder calls which in a first step."""
