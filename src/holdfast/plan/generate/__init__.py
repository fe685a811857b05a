"""Framework configurations: written from a setup, read, and converted between frameworks.

``migration.write_format`` writes one, ``migration.migrate_settings`` converts one,
``framework_choice.choose_framework`` compares FSDP with DeepSpeed. All use ``recipe.Recipe``, which
is independent of frameworks; ``mapping.SETTING_MAPPINGS`` maps each of DeepSpeed's keys.
"""
