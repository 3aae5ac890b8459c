"""How good the layout is that a forecast takes for the fastest: predicted and measured steps."""
