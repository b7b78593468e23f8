"""One run on many processes: who computes which events, and how a model is spread over them."""
