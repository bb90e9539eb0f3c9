/* Exports flite's lexicon and letter-to-sound rules (cmulex).
 *
 *     lexicon < words       word, 1 if the lexicon lists it (0: the rules say the same), phones; tab-separated
 *     lexicon --rules       the decision trees as text, see LetterToSound.load
 */
#include <cst_lexicon.h>
#include <cst_lts.h>
#include <flite.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

cst_lexicon *cmu_lex_init(void);

enum { LEAF = 255, MOST_RULES = 70000, LETTERS = 26 };

static void write_rules(const cst_lts_rules *rules) {
    int phones = 0;
    while (rules->phone_table[phones])
        phones++;
    printf("%d %d\n%d", rules->context_window_size, rules->context_extra_feats, phones);
    for (int i = 0; i < phones; i++)
        printf(" %s", rules->phone_table[i]);
    printf("\n");
    for (int i = 0; i < LETTERS; i++)
        printf("%d ", rules->letter_index[i]);
    printf("\n%s\n", rules->letter_table ? "table" : "notable");

    /* The table's length is stored nowhere: find the last node that the roots reach. */
    const cst_lts_rule *nodes = (const cst_lts_rule *)rules->models;
    static unsigned char seen[MOST_RULES];
    static int stack[MOST_RULES];
    int top = 0, last = 0;
    for (int i = 0; i < LETTERS; i++)
        stack[top++] = rules->letter_index[i];
    while (top) {
        int node = stack[--top];
        if (seen[node]++)
            continue;
        if (node > last)
            last = node;
        if (nodes[node].feat != LEAF) {
            stack[top++] = nodes[node].qtrue;
            stack[top++] = nodes[node].qfalse;
        }
    }
    printf("%d\n", last + 1);
    for (int i = 0; i <= last; i++)
        printf("%d %d %d %d\n", nodes[i].feat, nodes[i].val, nodes[i].qtrue, nodes[i].qfalse);
}

int main(int argc, char **argv) {
    flite_init();
    cst_lexicon *lexicon = cmu_lex_init();
    if (argc > 1) {
        if (strcmp(argv[1], "--rules")) {
            fprintf(stderr, "usage: lexicon [--rules] < words\n");
            return 2;
        }
        write_rules(lexicon->lts_rule_set);
        return 0;
    }
    char word[512];
    while (fgets(word, sizeof word, stdin)) {
        word[strcspn(word, "\r\n")] = 0;
        if (!*word)
            continue;
        cst_val *phones = lex_lookup(lexicon, word, NULL, NULL);
        printf("%s\t%d\t", word, in_lex(lexicon, word, NULL, NULL));
        for (const cst_val *phone = phones; phone; phone = val_cdr(phone))
            printf("%s ", val_string(val_car(phone)));
        printf("\n");
        delete_val(phones);
    }
    return 0;
}
