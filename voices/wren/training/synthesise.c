/* Speaks sentences with flite's voice cmu_us_slt and writes what a model can learn from.
 *
 *     synthesise PREFIX < sentences
 *
 * One sentence a line. Writes PREFIX.pcm (16 bit, 16 kHz, mono), PREFIX.f0 (float32 Hz every 5 ms, 0 where
 * unvoiced) and PREFIX.tsv, one line a sentence: samples, F0 values, text, phones. A phone is
 * name|end in seconds|stress|begins a word|punctuation after its word; phones are separated by blanks.
 * Sentences shorter than 0.2 s or longer than 14 s are left out.
 */
#include <cst_cg.h>
#include <flite.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

cst_voice *register_cmu_us_slt(const char *);

static FILE *open_output(const char *prefix, const char *suffix) {
    char path[1024];
    snprintf(path, sizeof path, "%s%s", prefix, suffix);
    FILE *file = fopen(path, "wb");
    if (!file) {
        perror(path);
        exit(1);
    }
    return file;
}

static void write_phones(FILE *out, cst_utterance *utterance) {
    const cst_item *last_word = NULL;
    cst_item *phone = relation_head(utt_relation(utterance, "Segment"));
    for (; phone; phone = item_next(phone)) {
        cst_item *in_syllable = item_as(phone, "SylStructure");
        cst_item *syllable = in_syllable ? item_parent(in_syllable) : NULL;
        cst_item *word = syllable ? item_parent(syllable) : NULL;
        const char *stress = syllable ? item_feat_string(syllable, "stress") : "0";
        const char *punctuation = word ? ffeature_string(word, "R:Token.parent.punc") : "";
        if (!punctuation || !strcmp(punctuation, "0"))
            punctuation = "";
        fprintf(out, "%s|%.3f|%s|%d|%s ", item_feat_string(phone, "name"), item_feat_float(phone, "end"),
                stress, word && word != last_word, punctuation);
        last_word = word;
    }
}

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: synthesise PREFIX < sentences\n");
        return 2;
    }
    flite_init();
    cst_voice *voice = register_cmu_us_slt(NULL);
    FILE *pcm = open_output(argv[1], ".pcm"), *f0 = open_output(argv[1], ".f0");
    FILE *table = open_output(argv[1], ".tsv");
    char line[4096];
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\r\n")] = 0;
        if (!*line)
            continue;
        cst_utterance *utterance = flite_synth_text(line, voice);
        cst_wave *wave = utt_wave(utterance);
        if (wave && wave->num_samples >= 3200 && wave->num_samples <= 14 * 16000) {
            cst_track *track = val_track(utt_feat_val(utterance, "param_track"));
            fwrite(wave->samples, 2, wave->num_samples, pcm);
            for (int i = 0; i < track->num_frames; i++)
                fwrite(&track->frames[i][0], sizeof(float), 1, f0);
            fprintf(table, "%d\t%d\t%s\t", wave->num_samples, track->num_frames, line);
            write_phones(table, utterance);
            fputc('\n', table);
        }
        delete_utterance(utterance);
    }
    return fclose(pcm) || fclose(f0) || fclose(table);
}
