//! Model lists and what model files say about themselves.

use nodes::picture::decode_pixels;
use serde_json::{Value, json};

use crate::site::{Site, png};

fn site_with_models() -> Site {
    let site = Site::new();
    site.write("models/embeddings/sub/easy.v2.pt", "x");
    site.write("models/embeddings/bad.safetensors", "x");
    site.write("models/loras/a.safetensors", safetensors(r#"{"__metadata__":{"ss_name":"é","n":"1"}}"#));
    site.write("models/loras/plain.safetensors", safetensors("{}"));
    site.write("models/loras/broken.safetensors", "x");
    site.write("models/loras/a.png", png(2, 1, &[1, 2, 3]));
    site.write("models/loras/sub/b.safetensors", safetensors("{}"));
    site.write("models/loras/sub/b.preview.png", png(3, 1, &[1, 2, 3]));
    site.write("models/loras/notes.txt", "secret");
    site.write("output/loras/a.safetensors", "made here");
    site
}

fn safetensors(header: &str) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes
}

#[tokio::test]
async fn names_of_models() {
    let site = site_with_models();
    assert_eq!(site.get("/embeddings").await.json(), json!(["bad", "sub/easy.v2"]));
    let keys = site.get("/api/models").await.json();
    for key in ["checkpoints", "loras", "vae", "text_encoders", "diffusion_models"] {
        assert!(keys.as_array().unwrap().contains(&json!(key)), "{key}");
    }
    let names = json!(["a.safetensors", "broken.safetensors", "plain.safetensors", "sub/b.safetensors"]);
    assert_eq!(site.get("/models/loras").await.json(), names);
    assert_eq!(site.get("/models/vae").await.json(), json!([]));
    for path in ["/models/unknown", "/models/unet", "/models/..", "/experiment/models/unknown"] {
        assert_eq!(site.get(path).await.status, 404, "{path}");
    }
}

#[tokio::test]
async fn folders_and_files_of_models() {
    let site = site_with_models();
    let folders = site.get("/api/experiment/models").await.json();
    let folders = folders.as_array().unwrap();
    let named = |name: &str| folders.iter().find(|folder| folder["name"] == name);
    assert!(named("configs").is_none() && named("custom_nodes").is_none());
    let places: Vec<Value> =
        ["models/loras", "output/loras"].iter().map(|path| json!(site.path(path))).collect();
    assert_eq!(named("loras").unwrap()["folders"], Value::Array(places));
    let files = site.get("/experiment/models/loras").await.json();
    let rows: Vec<(&Value, &Value)> =
        files.as_array().unwrap().iter().map(|file| (&file["pathIndex"], &file["name"])).collect();
    let expected = [
        (&json!(0), &json!("a.safetensors")),
        (&json!(0), &json!("broken.safetensors")),
        (&json!(0), &json!("plain.safetensors")),
        (&json!(0), &json!("sub/b.safetensors")),
        (&json!(1), &json!("a.safetensors")),
    ];
    assert_eq!(rows, expected);
    assert_eq!(files[4]["size"], 9);
    assert!(files[4]["modified"].is_f64() && files[4]["created"].is_f64());
}

#[tokio::test]
async fn pictures_beside_models() {
    let site = site_with_models();
    let get = async |path: &str| site.get(&format!("/experiment/models/preview/loras/{path}")).await;
    for (path, width) in [("0/a.safetensors", 2), ("0/sub/b.safetensors", 3), ("0/sub%2Fb.safetensors", 3)] {
        let reply = get(path).await;
        assert_eq!((reply.status, reply.header("content-type").as_str()), (200, "image/webp"), "{path}");
        assert_eq!(decode_pixels(&reply.body).unwrap().width, width);
    }
    for path in
        ["0/plain.safetensors", "1/a.safetensors", "9/a.safetensors", "x/a.safetensors", "-1/a.safetensors"]
    {
        assert_eq!(get(path).await.status, 404, "{path}");
    }
    assert_eq!(get("0/..%2F..%2Foutput%2Fa.safetensors").await.status, 403);
}

#[tokio::test]
async fn what_a_file_says_about_itself() {
    let site = site_with_models();
    let get = async |query: &str| site.get(&format!("/view_metadata/loras?{query}")).await;
    assert_eq!(get("filename=a.safetensors").await.json(), json!({ "ss_name": "é", "n": "1" }));
    for query in [
        "",
        "filename=plain.safetensors",
        "filename=broken.safetensors",
        "filename=missing.safetensors",
        "filename=notes.txt",
        "filename=a.png",
        "filename=../../user/x.safetensors",
        "filename=%00.safetensors",
    ] {
        assert_eq!(get(query).await.status, 404, "{query}");
    }
    assert_eq!(site.get("/view_metadata/unknown?filename=a.safetensors").await.status, 404);
}

#[tokio::test]
async fn what_comes_with_the_program_is_in_the_library() {
    let site = Site::with(|config, _| {
        config.folders.add_file("vae", "demo.safetensors", std::path::Path::new("embedded/demo.safetensors"));
    });
    site.write("models/vae/own.safetensors", "x");
    let listed = site.get("/experiment/models/vae").await.json();
    let names: Vec<&str> =
        listed.as_array().unwrap().iter().map(|entry| entry["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["own.safetensors", "demo.safetensors"]);
    assert!(listed[1]["size"].is_u64() && listed[1]["pathIndex"].is_u64(), "the front end reads numbers");
}
