"""LLM and embedding clients, response parsing, limits and prices: no Spark."""
