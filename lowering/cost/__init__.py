"""What a call costs: features of chunks, coefficients of chips, milliseconds with intervals."""
