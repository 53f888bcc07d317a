"""The trainer and its checkpoint library.

The packages form layers, and each layer imports only earlier ones: errors; config, user_code; process; checkpoint;
data; models; observe, tuning; loop; bench, script; train; __main__.
"""
