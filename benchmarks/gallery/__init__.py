"""Pages of docs/ with layouts and published models."""
