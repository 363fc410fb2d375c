"""Training programs that ``tpmon demo`` starts as processes of their own. Nothing imports them."""
