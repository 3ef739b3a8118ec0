"""smelt: is an architecture better, or did it only spend more?

Data flows one way, and so do imports:

    spec -> variants -> budget -> match -> grid -> (data, model) -> train -> ledger -> fit -> report

Nothing is imported here, so that planning and fitting start without jax.
"""

__version__ = "0.1.0"
