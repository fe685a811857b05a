"""What every part of the analysis speaks of: abstract values, effects of a path, divergences.

values       taint of a value over ranks
effects      the collectives, branches, loops, calls and exits of a path
exceptions   where a path raises, and which handler catches it
divergences  the record of a line where ranks may diverge
"""
