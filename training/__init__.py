"""The trainer and its checkpoint library.

The packages form layers. Each layer imports only earlier layers: errors; config, user_code; process; checkpoint; data;
models; observe, tuning; loop; bench, script; train; __main__.
"""
