"""Control flow (loops, branches), and settings of a block of code: layouts, seeds and more."""
