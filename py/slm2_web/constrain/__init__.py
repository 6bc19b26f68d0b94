"""Constrained output: a language (a JSON schema, a pattern) -> the tokens that may follow."""
