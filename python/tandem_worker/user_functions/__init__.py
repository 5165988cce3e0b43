"""The user's own functions (rewards, generate functions, filters, advantages): how they are found and called, and what
they are given and may give back."""
