"""Models with an encoder alone, beyond those of `transformer.models.bert`."""
