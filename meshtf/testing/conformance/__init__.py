"""The conformance suite: each op under every layout against one device."""
