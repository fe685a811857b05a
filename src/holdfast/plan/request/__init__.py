"""``holdfast plan``: from the request to the result.

plan_model      the planned model             model, module   find it by name, file or code
plan_request    the request; one run          setup           the given and the chosen setup
planning        the whole plan                measured_links  links measured by `holdfast bench`
layout_search   the best layout               mixed           GPUs of several kinds
relief          changes after OOM             command         the command line of a setup
presentation    output for people             json            output for programs
process_groups  groups and their drawings     config_files    configuration files
"""
