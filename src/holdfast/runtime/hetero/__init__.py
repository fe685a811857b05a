"""Training on GPUs of unequal speed and memory: each rank does what it can, and the result is that of one process.

May stand here: how fast ranks are (``speeds.py``), who gets which samples (``sampler.py``), what each loss counts
(``weights.py``), in which precision all of them compute (``precision.py``), sums by groups of ranks (``groups.py``),
and new shares where a rank slows down (``rebalance.py``). How a batch is dealt out is arithmetic, in
``holdfast.plan``; what ranks tell each other goes through ``telling.py``, in bounded collectives.
"""
