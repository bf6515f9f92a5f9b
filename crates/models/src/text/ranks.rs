//! Vocabularies of byte pairs that are kept as a list of tokens by rank: which pairs were learned follows from it.

use std::collections::HashMap;

use super::byte_pairs::PairVocabulary;

/// Llama 3's texts that are one token, from the first id after its ranks on; those between are reserved.
const LLAMA_SPECIAL: [(usize, &str); 5] = [
    (0, "<|begin_of_text|>"),
    (1, "<|end_of_text|>"),
    (6, "<|start_header_id|>"),
    (7, "<|end_header_id|>"),
    (9, "<|eot_id|>"),
];
/// How many there are, with the reserved ones.
const LLAMA_SPECIALS: usize = 256;

/// A vocabulary of tokens in the order of their ranks, with ids from `first` on.
pub(crate) fn ranked(tokens: Vec<Vec<u8>>, first: u32, special: Vec<(String, u32)>) -> PairVocabulary {
    let ranks: HashMap<&[u8], usize> = tokens.iter().map(Vec::as_slice).zip(0..).collect();
    let mut pairs = Vec::new();
    for token in &tokens {
        // Every cut of a token into two tokens can lead to it; earlier parts first.
        let mut cuts: Vec<(usize, usize, usize)> = (1..token.len())
            .filter_map(|at| Some((*ranks.get(&token[..at])?, *ranks.get(&token[at..])?, at)))
            .collect();
        cuts.sort_unstable();
        pairs.extend(cuts.into_iter().map(|(_, _, at)| (token[..at].to_vec(), token[at..].to_vec())));
    }
    let ids = tokens.into_iter().zip(first..).collect();
    PairVocabulary { ids, pairs, special }
}

/// Llama 3's vocabulary as Meta published it: a line per token, its bytes in base64 and its rank.
pub(crate) fn of_llama(text: &str) -> Result<PairVocabulary, String> {
    let mut tokens = Vec::new();
    for line in text.lines().filter(|line| !line.is_empty()) {
        let (token, rank) =
            line.split_once(' ').ok_or_else(|| format!("{line:?} is no token with its rank"))?;
        if rank.trim().parse::<usize>().ok() != Some(tokens.len()) {
            return Err(format!("rank {rank} stands where {} should", tokens.len()));
        }
        tokens.push(meta::base64::decode(token).map_err(|_| format!("{token:?} is not base64"))?);
    }
    let first = tokens.len() as u32;
    let mut reserved = 0..;
    let name = |i: usize| match LLAMA_SPECIAL.iter().find(|(at, _)| *at == i) {
        Some((_, name)) => (*name).to_owned(),
        None => format!("<|reserved_special_token_{}|>", reserved.next().unwrap_or_default()),
    };
    let special = (0..LLAMA_SPECIALS).map(name).zip(first..).collect();
    Ok(ranked(tokens, 0, special))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_follow_from_the_ranks() {
        let tokens = ["a", "b", "aa", "ab", "aab"].map(|token| token.as_bytes().to_vec());
        let vocabulary = ranked(tokens.to_vec(), 10, Vec::new());
        assert_eq!(vocabulary.ids[&b"aab".to_vec()], 14);
        let pairs: Vec<(&[u8], &[u8])> = vocabulary.pairs.iter().map(|(l, r)| (&l[..], &r[..])).collect();
        let expected: [(&[u8], &[u8]); 4] = [(b"a", b"a"), (b"a", b"b"), (b"a", b"ab"), (b"aa", b"b")];
        assert_eq!(pairs, expected);
    }

    #[test]
    fn llamas_reserved_texts_are_counted_past_the_others() {
        let vocabulary = of_llama("YQ== 0\nYg== 1\n").unwrap();
        let id = |text: &str| vocabulary.special.iter().find(|(known, _)| known == text).map(|(_, id)| *id);
        assert_eq!(id("<|begin_of_text|>"), Some(2));
        assert_eq!(id("<|reserved_special_token_4|>"), Some(10));
        assert_eq!(id("<|reserved_special_token_250|>"), Some(257));
        assert!(of_llama("YQ== 1").is_err_and(|reason| reason.contains("rank 1")));
    }
}
