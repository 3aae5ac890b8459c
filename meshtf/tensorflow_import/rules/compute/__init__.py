"""Operations that compute."""
