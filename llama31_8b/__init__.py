"""Llama 3.1 8B: small LLM pretraining, the benchmark of MLPerf Training 5.1 to 6.1."""
