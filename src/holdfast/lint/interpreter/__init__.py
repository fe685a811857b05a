"""Abstract interpreter: what a program does on all ranks, computed from its source.

It executes the program once for all ranks together;
:meth:`~holdfast.lint.interpreter.programs.Program.analyze` returns the divergences: lines where
ranks may take different paths, with the collectives that not all of them enter. ``lint/rules``
turns these into findings.

Its parts share one state (:mod:`holdfast.lint.abstract_state`):

  programs             builds the parts; executes all modules until a fixpoint
  expressions, literals, lookup      evaluate expressions
  statements, blocks, definitions    execute statements
  calls, functions     evaluate calls of any kind; run functions, once per calling context
  divergence_recorder  records the divergences of what has run

Functions that the parts call:

  assignments, iteration             assign, iterate over instances
  branch_merge, narrowing            values after branches, loops and isinstance tests
  call_contexts                      signatures of arguments, for cached results
"""
