"""Elements beyond the end of a dimension.

element_ranges    ranges of an axis that extend beyond its ends, as windows read them
shard_blocks      the equal blocks that a collective sends, of a dimension that they do not
                  divide
"""
