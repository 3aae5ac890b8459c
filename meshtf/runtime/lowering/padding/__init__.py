"""Elements beyond the end of a dimension.

element_ranges    ranges of an axis that extend beyond its ends, as windows read them
filled_padding    the padding of short shards, before an op runs
shard_blocks      the equal blocks that a collective sends, of a dimension that they do not
                  divide
"""
