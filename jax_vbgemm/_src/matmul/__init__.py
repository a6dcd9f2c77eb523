"""Products: from the checked call to the primitive, its derivatives and vmap, and the custom call it is lowered to."""
