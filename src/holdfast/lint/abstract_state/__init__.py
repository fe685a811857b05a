"""The state of the abstract interpreter, which models of library calls read and change too.

abstract_objects    what a value may be: functions, classes, instances, library objects
arguments           the arguments of a call
frames              one execution of a function
function_summaries  cached results per function and context
mutations           changes of values in place
state               the program, caches, and the dispatch of syntax nodes to the interpreter
"""
