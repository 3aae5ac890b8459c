#!/bin/sh
# The commands of README.md: makes tasks of Python's standard library, pretrains, fine-tunes twice.
#     make bert            or            PYTHON=python sh examples/bert/walk.sh runs/bert
set -e
PYTHON="${PYTHON:-python}" RUN="${1:-runs/bert}"
TASKS="$RUN/tasks"
MODEL="--bert_config_file=$TASKS/bert_config.json --vocab_file=$TASKS/vocab.txt"

test -d "$TASKS" || "$PYTHON" -m examples.bert.make_tasks --output_dir="$TASKS"

for split in train held_out; do
  "$PYTHON" -m examples.bert.create_pretraining_data --input_file="$TASKS/$split.txt" \
    --output_file="$RUN/$split.tfrecord" --vocab_file="$TASKS/vocab.txt" --max_seq_length=64 \
    --max_predictions_per_seq=10 --dupe_factor=2
done

"$PYTHON" -m examples.bert.run_pretraining $MODEL --input_file="$RUN/train.tfrecord" \
  --eval_file="$RUN/held_out.tfrecord" --output_dir="$RUN/pretrained" --do_train --do_eval \
  --max_seq_length=64 --max_predictions_per_seq=10 --train_batch_size=32 --eval_batch_size=64 \
  --num_train_steps=900 --num_warmup_steps=90 --learning_rate=1e-3 --mesh='data:2'

"$PYTHON" -m examples.bert.run_classifier $MODEL --data_dir="$TASKS/exchanged" --task_name=tsv \
  --init_checkpoint="$RUN/pretrained" --output_dir="$RUN/exchanged" --do_train --do_eval \
  --do_predict --max_seq_length=40 --train_batch_size=32 --eval_batch_size=64 \
  --num_train_epochs=2 --learning_rate=1e-3 --mesh='model:2'

"$PYTHON" -m examples.bert.run_squad $MODEL --train_file="$TASKS/questions/train.json" \
  --predict_file="$TASKS/questions/dev.json" --version_2_with_negative \
  --init_checkpoint="$RUN/pretrained" --output_dir="$RUN/questions" --do_train --do_eval \
  --do_predict --max_seq_length=80 --max_query_length=16 --doc_stride=32 --train_batch_size=32 \
  --eval_batch_size=64 --num_train_epochs=2 --learning_rate=1e-3 --mesh='data:2'
