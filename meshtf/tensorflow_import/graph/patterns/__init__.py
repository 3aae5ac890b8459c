"""What several operations of a graph stand for."""
