"""Moonpool: a disaggregated KV cache for LLM serving."""
