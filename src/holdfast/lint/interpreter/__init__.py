"""Abstract interpreter: what a program does on all ranks, computed from its source.

It executes the program once for all ranks together;
:meth:`~holdfast.lint.interpreter.programs.Program.analyze` returns the divergences: lines where
ranks may take different paths, with the collectives that not all of them enter. ``lint/rules``
turns these into findings.

Abstract values and effects:

  values               taint of a value over ranks
  abstract_objects     what a value may be: functions, classes, instances, library objects
  effects              the collectives, branches, loops, calls and exits of a path
  exceptions           where a path raises, and which handler catches it

The interpreter, whose parts share one state:

  programs             builds the parts; executes all modules until a fixpoint
  state                the program, caches, and the dispatch of syntax nodes to the parts
  frames               one execution of a function
  expressions, literals, lookup      evaluate expressions
  statements, definitions            execute statements
  calls, functions     evaluate calls of any kind; run functions, once per calling context
  divergence_recorder  records the divergences of what has run
  function_summaries, call_contexts  cached results per function and context

Functions that the parts call:

  assignments, mutations, iteration  assign, change values in place, iterate over instances
  branch_merge, narrowing            values after branches, loops and isinstance tests
  arguments, side_effects            arguments of a call; files and environment variables
"""
