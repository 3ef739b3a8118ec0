"""Text or tokens of others -> corpora on disk -> batches that are a function of (seed, step).

    recipes, sources -> spool -> split -> tokenizers -> corpus (store) -> pipeline
                                          formats   -/

numpy only: jax is never imported here, and grain, tokenizers and pyarrow only inside the functions that need
them. What a token costs and what a model does with it is not known here.
"""
