"""Operations that move, cut, join or look up elements."""
