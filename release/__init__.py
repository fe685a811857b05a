"""Programs of ``make versions`` and ``make wheel``: holdfast with several versions of torch."""
