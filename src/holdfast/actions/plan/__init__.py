"""``holdfast plan``: from what is asked to what is answered.

wish         what is asked for, and one run with what it needs     model, module   the model, also from one's own code
planning     the whole: a setup, what would fit, what is judged    links           as `holdfast bench` measured them
setup        what was given, and what is chosen                    search, mixed   layouts; GPUs of several kinds
relief       what would have helped a run that was out of memory   command         the command line of an alternative
shown, json  for people, for programs                              groups, files   process groups, configurations
"""
