"""What a program does on each rank, read from its source: who calls whom, what differs over ranks, what all must enter.

A room of facts: it looks and never judges. An abstract interpreter runs the program once, for all ranks together, and
:meth:`holdfast.facts.code.programs.Program.look` gives its partings: places where ranks may go different ways, with the
collectives that not all of them enter. rules/code judges these.

    reading      files ─▶ parsed modules, and what was passed over
    notebooks    what of them is a program                              cells      their lines as people name them
    modules      names ─▶ functions, classes, names of libraries
    values       what is known of a value over all ranks                things     what it may be
    effects      what a way through the code enters, in its order
    frames       a function that runs                                   arguments  what a call gives
    state        what the interpreter's parts share
    lookup       names, attributes, elements                            expressions  operators, displays
    assigning    what statements change                                 flow, definitions  statements
    functions    of the program, run once for each context              signatures by what contexts are told apart
    calls        of anything
    library      tables: which calls are collectives, differ, agree     library_calls, _classes, _functions, _methods
    alarms       limits of time that end a collective
    labour       work of one rank, for which the others wait
    collectives  what a collective does                                 noted      files and variables
    relevance    which functions can matter
    shared_files  files that all ranks write
    environments  variables that are set, and read by nobody here
    groups       who is in a group                                      failed_scores  evaluations that fail unseen
    averages     means of ranks' own means
    partings     where ranks part                                       ordering   those in the order of things
    passages     functions as they are written          habits     what a few lines show, no run needed:
                 habits_files, _paths (what is loaded and saved), _loops, _groups, _handles, _seeds
    devices      when a GPU is taken
    programs     modules, round after round, until nothing is learned
"""
