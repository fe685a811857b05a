"""The state of the abstract interpreter, which models of library calls read and change too.

abstract_objects    what a value may be: functions, classes, instances, library objects
arguments           the arguments of a call
frames              one execution of a function
function_summaries  cached results per function and context
heap                attributes of objects by allocation site, and facts along a path
mutations           changes of values in place
shares              lengths of shares of data, and containers that grow alike on all ranks
state               the program, caches, and the dispatch of syntax nodes to the interpreter
"""
