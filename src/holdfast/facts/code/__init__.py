"""What a program does on each rank, read from its source: who calls whom, what differs over ranks, what all must enter.

A room of facts: it looks and never judges. An abstract interpreter runs the program once, for all ranks together, and
:meth:`holdfast.facts.code.programs.Program.look` gives its partings: places where ranks may go different ways, with the
collectives that not all of them enter. rules/code judges these.

    reading      files ─▶ parsed modules, and what was passed over
    imports      what a file imports                       components   which files are one program
    imported     which files a program runs                notebooks, cells   programs in cells, and lines in them
    modules      names ─▶ functions, classes, libraries    relevance    which functions can matter
    values       what is known of a value over all ranks   things       what it may be
    effects      what a way through the code enters, in its order
    partings     where ranks part                          ordering, turns   those in the order of things
    programs     all modules, round after round, until nothing is learned
    memory       what functions did, from round to round

The interpreter, whose parts share a state:

    state        what they ask of each other               frames       a function that runs
    lookup       names, attributes, elements               expressions  operators, displays
    flow, definitions, assigning   statements              arguments    what a call gives
    calls        of anything                               functions    of the program, once for each context
    signatures   by what contexts are told apart           alone        whether there are several processes at all
    library/     which calls are collectives, differ, agree; functions, classes and methods that are known by heart
    collectives  what a collective does                    groups       who is in a group
    alarms       limits of time that end one               devices      when a GPU is taken
    labour       work of one rank, for which others wait   noted, shared_files   files that are written, and by whom

What needs no run:

    habits/      what a few lines show: loops, files, groups, handles, seeds, means, failed evaluations
    environments  variables that are set, and read by nobody here
"""
